"""Trained drafters: small networks that draft for one model, and see what it has computed.

config.py     the sizes of a network, and for which model it was trained
sizes.py      how large a drafter for a model is
network.py    the networks for training, in PyTorch
observer.py   the part that runs beside the model, and makes features of its keys and values
parts.py      matrices beside a decoder's layers, in a format
following.py  a decoder whose rows need what the row before put out, as EAGLE's do
files.py      a trained drafter in a folder: written whole, and checked when it is read
"""
