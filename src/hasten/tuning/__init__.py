"""What is found by trying it on the job. `search` decides what is tried; `trials` are the processes that try it;
`proof` and `resume` prove that nothing is harmed; `mesh` plans on paper. The modules here train briefly in this
process."""
