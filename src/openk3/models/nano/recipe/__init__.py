"""How the bundled model is made: fetch texts, write dialogues, train a vocabulary and the model, export, measure.

Run it as ``python -m openk3.models.nano.recipe STAGE``; every stage is deterministic given the stages before.
"""
