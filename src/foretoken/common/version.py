"""The version of this package, for parts of it that may not import the whole."""

VERSION = "0.1.0"
