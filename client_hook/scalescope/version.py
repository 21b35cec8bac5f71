"""The version of the distribution, both import packages included."""

__version__ = "0.1.0"
