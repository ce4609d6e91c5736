"""What techniques share, or need beside their page: models cut into blocks, traced, measured. No technique is here."""
