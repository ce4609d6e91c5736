"""Which choices are tried, in which order, and what joins the plan. No process is started here, and no proof made."""
