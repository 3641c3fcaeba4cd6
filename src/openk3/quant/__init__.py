"""Weight formats, and which module gets which."""
