"""Serving a language model: the token desk live, engines in processes of their own, OpenAI's wire format in front."""
