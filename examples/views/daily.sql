-- One row per carrier and day: a refresh computes changed groups.
select carrier, day, count(*) as flights, round(avg(delay), 1) as delay, max(delay) as worst
from flights
group by carrier, day
having count(delay) > 0
