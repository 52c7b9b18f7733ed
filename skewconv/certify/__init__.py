"""Certificates that are sound: radii, certified accuracy, their check, audits, attacks."""

from skewconv.certify.attack import AttackReport, Violation, attack_by_name, attack_certificates
from skewconv.certify.audit import audit, format_audit
from skewconv.certify.autoattack import AutoAttack
from skewconv.certify.certificates import Certificates, certify_dataset
from skewconv.certify.certified_accuracy import THRESHOLDS, certified_accuracy, curve, mean_radius
from skewconv.certify.certifier import Certifier, radii
from skewconv.certify.check import CheckReport, check_certificates, check_in_balls
from skewconv.certify.hashes import data_hash, weights_hash
from skewconv.certify.perturb import PGD, fgsm
from skewconv.certify.predict import Predictions, predict
from skewconv.certify.programs import register_rounding
from skewconv.certify.rounding_search import RoundingSearch
from skewconv.certify.tightness import BoundarySearch, Tightness, measure_tightness

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
