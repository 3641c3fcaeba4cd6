"""OpenAI's dialect: chat completions, responses, completions."""
