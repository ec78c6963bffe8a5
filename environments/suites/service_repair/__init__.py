"""Suite `service_repair`: broken service trees that are mended with a real shell."""
