"""Decisions about language models: who prefills, who decodes, what each step computes.

A request of a language model is served a token at a time, so its decisions are taken per step and not per batch. The
form is that of the dispatch desk next door: facts come in with their time, effects go out, nothing is drawn or waited
for, and the same functions run live and simulated.

Words: a *sequence* is one request's tokens. A *step* is one run of a model over some tokens of many sequences. KV is
kept in *blocks* of a fixed number of tokens. A sequence is *local* when one engine prefills and decodes it, *remote*
when its prompt is computed elsewhere and its KV handed over.
"""
