"""The service over HTTP: its routes, the bodies of requests and answers, and the server."""
