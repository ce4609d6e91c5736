"""The only room that formats for people."""
