"""Certificates that are sound: radii, certified accuracy, their check, audits, attacks."""

from skewconv.certify.attack import (
    AttackReport,
    Tightness,
    Violation,
    attack_by_name,
    attack_certificates,
    measure_tightness,
)
from skewconv.certify.audit import audit, format_audit
from skewconv.certify.certificates import (
    THRESHOLDS,
    Certificates,
    certified_accuracy,
    certify_dataset,
    curve,
    data_hash,
    mean_radius,
)
from skewconv.certify.certifier import Certifier, radii, weights_hash
from skewconv.certify.check import CheckReport, check_certificates, check_in_balls
from skewconv.certify.perturb import PGD, AutoAttack, BoundarySearch, RoundingSearch, fgsm
from skewconv.certify.predict import Predictions, predict
from skewconv.certify.programs import register_rounding

__all__ = [
    "PGD",
    "THRESHOLDS",
    "AttackReport",
    "AutoAttack",
    "BoundarySearch",
    "Certificates",
    "Certifier",
    "CheckReport",
    "Predictions",
    "RoundingSearch",
    "Tightness",
    "Violation",
    "attack_by_name",
    "attack_certificates",
    "audit",
    "certified_accuracy",
    "certify_dataset",
    "check_certificates",
    "check_in_balls",
    "curve",
    "data_hash",
    "fgsm",
    "format_audit",
    "mean_radius",
    "measure_tightness",
    "predict",
    "radii",
    "register_rounding",
    "weights_hash",
]
