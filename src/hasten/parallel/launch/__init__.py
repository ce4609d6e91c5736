"""Starting ranks, their process group, and how they end as one."""
