"""`hasten prove`: of the loss that a plan reaches, and of a run that is killed and resumed. How both are proven is in
hasten.tuning."""
