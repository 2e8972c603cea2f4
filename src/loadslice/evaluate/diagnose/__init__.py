"""From a symptom to its cause and remedy: evidence of a server or a run, and rules that read it."""
