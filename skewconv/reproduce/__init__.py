"""The paper's tables, run again: rows and the size of their runs, studies of them, and tables of records."""
