"""From run directories to tables and figures; reads the files of docs/results-format.md only."""
