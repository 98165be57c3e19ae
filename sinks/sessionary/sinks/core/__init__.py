"""Records to rows and batches, pure."""
