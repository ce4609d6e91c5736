"""What is found out by trying it on the job."""
