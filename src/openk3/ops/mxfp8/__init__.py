"""MXFP8: 8-bit floating point elements (E4M3) that share one power-of-two scale per 32."""
