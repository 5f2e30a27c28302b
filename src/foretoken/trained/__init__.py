"""Trained drafters: small networks that draft for one model, and see what it has computed.

config.py    the sizes of a network, and for which model it was trained
network.py   the network for training, in PyTorch
observer.py  the part that runs beside the model, and makes features of its keys and values
files.py     a trained drafter in a folder: written whole, and checked when it is read
"""
