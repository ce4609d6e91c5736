"""What a technique of jobs and one of scripts say of themselves."""
