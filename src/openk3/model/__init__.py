"""The Kimi K3 model. ``config``, ``catalogue``, ``presets`` and ``accounting`` do not import torch."""
