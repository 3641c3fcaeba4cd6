"""The Kimi K3 chat format: conversations to token ids, generated ids to deltas."""
