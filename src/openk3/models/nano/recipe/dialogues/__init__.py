"""Generated dialogues: each module holds tasks, ``compose`` strings their turns into conversations."""
