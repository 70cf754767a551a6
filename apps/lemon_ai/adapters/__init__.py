"""Wire APIs: one module per `api` id, each a request builder and a parser."""
