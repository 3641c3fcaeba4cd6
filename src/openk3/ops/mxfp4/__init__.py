"""MXFP4: 4-bit floating point elements (E2M1) that share one power-of-two scale per 32."""
