"""Tools that are no plain functions: those of MCP servers, and what tools say about their effects."""
