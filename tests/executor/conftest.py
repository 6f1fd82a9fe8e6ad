from tests.faults import faults_expected, fresh_recorder, no_fault_of_ours

__all__ = ["faults_expected", "fresh_recorder", "no_fault_of_ours"]
