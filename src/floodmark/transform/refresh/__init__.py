"""Steps that work on whole datasets: generators and datatable transforms."""
