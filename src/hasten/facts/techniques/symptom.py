"""The problem that a technique treats."""

from __future__ import annotations

from enum import Enum


class Symptom(Enum):
    SLOW_MATRIX_PRODUCT = "matrix products and convolutions take most of the step"
    SLOW_CONVOLUTION = "convolutions take most of the step"
    MANY_SMALL_OPERATIONS = "the step is many small operations"
    SLOW_OPTIMIZER = "the optimizer's update takes a visible share of the step"
    MEMORY_FULL = "the batch does not fit into memory"
    SLOW_LOADING = "the training waits for its next batch"
    DEVICE_IDLE = "the device waits for work"
    SLOW_ALLOCATION = "memory is allocated and freed all the time"
    SLOW_CONVERGENCE = "training needs many steps to its target"
    UNSTABLE_TRAINING = "loss or gradients jump"
    SLOW_COMMUNICATION = "processes wait for each other's gradients"
    SLOW_EVALUATION = "evaluation takes a visible share of the run"
