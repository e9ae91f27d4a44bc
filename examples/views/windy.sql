-- Flights with the wind at their airport and day, if known: a refresh computes changed join keys.
select f.id, f.carrier, origin, day, f.delay, w.wind
from flights f left join weather w using (origin, day)
