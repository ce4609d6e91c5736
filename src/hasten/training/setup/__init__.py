"""From a job and a plan to a model, optimizers and process-wide settings; nothing here trains."""
