"""SpecFuse and SpecEM (arXiv 2412.07380): models propose segments, and all of them choose one."""
