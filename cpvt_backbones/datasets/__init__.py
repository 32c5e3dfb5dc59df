"""Data sets that ship with the package; import the module you need, each has its own optional requirements."""
