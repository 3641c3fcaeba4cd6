"""Memory of the engine: one arena of equal blocks, and the exact prefix cache that lives in it."""
