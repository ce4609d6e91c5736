"""What a job's data may be, made one kind of record. Reading it in batches is in `loading`."""
