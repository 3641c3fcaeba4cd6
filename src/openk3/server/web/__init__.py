"""The web page of `openk3 serve`: a chat in plain HTML, CSS and JavaScript, and the routes that serve it."""
