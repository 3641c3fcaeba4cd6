"""OpenK3: the Kimi K3 system, from training to a measured deployment.

Importing this package imports nothing else; torch is loaded by the parts that compute.
"""

__version__ = "0.1.0"
