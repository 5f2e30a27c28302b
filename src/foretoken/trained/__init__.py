"""Trained drafters: small networks that draft for one model, and see what it has computed.

config.py     the sizes of a network, and for which model it was trained
sizes.py      how large a drafter for a model is
network.py    the networks for training, in PyTorch
observer.py   the part that runs beside the model, and makes features of its keys and values
parts.py      matrices beside a decoder's layers, in a format
stepwise.py   a decoder whose passes begin or end with something of its own; the next three are such
following.py  its rows need what the row before put out, as EAGLE's do
choosing.py   it can choose some tokens of the vocabulary alone
blocks.py     it fills several places of a text in one pass
files.py      a trained drafter in a folder: written whole, and checked when it is read
"""
