"""One file per policy; adding a file here is all that it takes to add one (see cona.registry)."""
