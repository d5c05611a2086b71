"""The command ``ensemble-decode``: one file per subcommand."""
