"""A model with its chat format, in this process: text and messages in, answers out."""
