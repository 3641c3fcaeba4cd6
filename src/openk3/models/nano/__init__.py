"""The bundled model of a few million parameters, and how it was made (``recipe``)."""
