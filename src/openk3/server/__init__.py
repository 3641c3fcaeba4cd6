"""A model behind HTTP: the dialects of the hosted service, a web page, and what an operator needs."""
