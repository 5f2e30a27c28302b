"""Foretoken inside other people's programs. Nothing is imported before it is used.

attached.py   `generate` of a transformers model that is loaded: attach, detach
causal_lm.py  a class to use where a program loads the model with transformers
adopted.py    the weights of a transformers model, by address
deciding.py   what transformers' processors and criteria decide, position by position
driving.py    transformers' own `generate`, with our loop in place of its loop
"""
