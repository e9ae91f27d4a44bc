-- Flights with the wind of their place and day, if that is known: refreshed by join keys.
select f.id, f.carrier, origin, day, f.delay, w.wind
from flights f left join weather w using (origin, day)
