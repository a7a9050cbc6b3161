"""Options, plug-ins and URLs of servers, as users write them in code, files and settings."""
