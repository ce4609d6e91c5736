"""Which meshes of devices a job can be trained on, and what each costs, on paper. Nothing is trained here."""
