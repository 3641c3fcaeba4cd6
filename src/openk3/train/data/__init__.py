"""Training data: token shards on disk, text and dialogues turned into them, mixed and packed into batches."""
